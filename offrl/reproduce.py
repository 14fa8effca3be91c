"""python -m offrl.reproduce"""

from offrl.protocol.reproduce import main

if __name__ == "__main__":
    main()
