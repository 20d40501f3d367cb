package ledgerfile

import "os"

// Open opens a file to read. It does not wait for the writer of a named pipe.
func Open(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|nonBlocking, 0) }
