"""Videos with sentences that describe their parts."""
