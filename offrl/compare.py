"""python -m offrl.compare"""

from offrl.protocol.compare import main

if __name__ == "__main__":
    main()
