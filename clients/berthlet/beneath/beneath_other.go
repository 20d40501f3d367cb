//go:build !linux

package beneath

import (
	"io/fs"
	"os"

	"github.com/berthd/berth/managers/errdefs"
)

var errNotHere = errdefs.Unsupportedf("berthlet runs containers on Linux only")

// Root returns an error of class Unsupported.
func Root(string) (*os.File, error) { return nil, errNotHere }

// Private returns an error of class Unsupported.
func Private(string) error { return errNotHere }

// Open returns an error of class Unsupported.
func Open(*os.File, string) (*os.File, error) { return nil, errNotHere }

// OpenOrMake returns an error of class Unsupported.
func OpenOrMake(*os.File, string, fs.FileMode) (*os.File, error) { return nil, errNotHere }

// File returns an error of class Unsupported.
func File(*os.File, string, int, fs.FileMode) (*os.File, error) { return nil, errNotHere }

// Rename returns an error of class Unsupported.
func Rename(*os.File, string, string) error { return errNotHere }
