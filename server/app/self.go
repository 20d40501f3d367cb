package app

import "os"

// selfUID is the user that berthd runs as.
func selfUID() uint32 { return uint32(max(os.Getuid(), 0)) }
