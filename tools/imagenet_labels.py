"""Write the names of the ImageNet classes that the `offline` backbone joins with: synonyms and hypernyms of WordNet.

The input is public: the list of the 1,000 WordNet ids in the order of the classifier (imagenet_synsets.txt in the
package timm), and the database of WordNet 3.0 (data.noun in the Debian package wordnet-base).

    python -m tools.imagenet_labels imagenet_synsets.txt data.noun midreel/assets/offline/labels.tsv
"""

import argparse
from pathlib import Path

# Hypernyms that say nothing about what is seen. A chain ends at the first of them.
_TOO_GENERAL = {
    "entity",
    "physical entity",
    "abstraction",
    "object",
    "whole",
    "artifact",
    "living thing",
    "organism",
    "matter",
    "unit",
    "group",
    "relation",
    "causal agent",
    "instrumentality",
    "chordate",
    "vertebrate",
    "placental",
    "invertebrate",
    "psychological feature",
    "attribute",
    "substance",
    "part",
    "thing",
}


def main() -> None:
    """Write the labels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("synsets", type=Path, help="the WordNet ids in the order of the classifier")
    parser.add_argument("nouns", type=Path, help="data.noun of WordNet 3.0")
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    nouns = dict(map(_entry, _lines(given.nouns)))
    rows = []
    for synset in given.synsets.read_text(encoding="utf-8").split():
        names, gloss, _ = nouns[synset[1:]]
        rows.append("\t".join([synset, ", ".join(names), ", ".join(_hypernyms(nouns, synset[1:])), gloss]))
    given.output.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _lines(path: Path) -> list[str]:
    """Return the entries of a database file. The lines of the licence start with spaces."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]


def _entry(line: str) -> tuple[str, tuple[list[str], str, list[str]]]:
    """Return the id of an entry, with its names, its definition and the ids of its hypernyms.

    >>> _entry("00001930 03 n 01 physical_entity 0 001 @ 00001740 n 0000 | an entity ; \\"an example\\"")
    ('00001930', (['physical entity'], 'an entity', ['00001740']))
    """
    data, _, gloss = line.partition(" | ")
    fields = data.split(" ")
    count = int(fields[3], 16)
    names = [name.replace("_", " ") for name in fields[4 : 4 + 2 * count : 2]]
    pointers = fields[5 + 2 * count :]
    above = [pointers[at + 1] for at in range(0, len(pointers) - 3, 4) if pointers[at] in ("@", "@i")]
    return fields[0], (names, gloss.split("; ")[0].split(";")[0].strip(), above)


def _hypernyms(nouns: dict[str, tuple[list[str], str, list[str]]], synset: str) -> list[str]:
    """Return the first name of each hypernym, from near to general."""
    found: list[str] = []
    while above := nouns[synset][2]:
        synset = above[0]
        name = nouns[synset][0][0]
        if name in _TOO_GENERAL:
            break
        found.append(name)
    return found


if __name__ == "__main__":
    main()
