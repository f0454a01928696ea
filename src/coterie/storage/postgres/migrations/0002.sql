-- A database that was brought back from a backup is of another history than it was of before.

ALTER TABLE cluster ADD COLUMN restoration uuid;  -- anew each time; null: it never was
