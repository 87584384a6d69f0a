"""The pure core: functions of their arguments on frozen values. No clock, socket, file, thread or log in here."""
