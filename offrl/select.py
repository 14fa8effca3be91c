"""python -m offrl.select"""

from offrl.selection.decision import main

if __name__ == "__main__":
    main()
