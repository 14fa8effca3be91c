"""python -m offrl.penalty_study"""

from offrl.protocol.penalty_study import main

if __name__ == "__main__":
    main()
