//go:build !unix

package command

import "io/fs"

// groupOf returns nothing: files have no groups here.
func groupOf(fs.FileInfo) string { return "" }
