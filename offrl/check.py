"""python -m offrl.check"""

from offrl.learning.contract import main

if __name__ == "__main__":
    main()
