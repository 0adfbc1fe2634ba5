"""Files that hold arrays, columns, labels or lists; no reader executes anything in them."""
