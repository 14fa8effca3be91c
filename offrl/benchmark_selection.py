"""python -m offrl.benchmark_selection"""

from offrl.selection.benchmark import main

if __name__ == "__main__":
    main()
