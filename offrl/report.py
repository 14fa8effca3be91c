"""python -m offrl.report"""

from offrl.reporting.report import main

if __name__ == "__main__":
    main()
