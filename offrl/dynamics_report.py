"""python -m offrl.dynamics_report"""

from offrl.protocol.dynamics_report import main

if __name__ == "__main__":
    main()
