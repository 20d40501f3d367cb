// Package app puts berthd together.
//
// The order of everything is written here once: build.go constructs the parts,
// from the machine up to the servers; run.go starts them and stops them in
// reverse. Constructors start nothing and most of them touch nothing, so an App
// that was built and never run leaves no trace but its state directory.
//
// Nobody imports this package but the daemon's main and tests.
package app
