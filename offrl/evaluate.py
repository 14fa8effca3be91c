"""python -m offrl.evaluate"""

from offrl.playing.evaluation import main

if __name__ == "__main__":
    main()
