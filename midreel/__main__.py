from midreel.cli import main

main()
