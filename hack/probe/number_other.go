//go:build !amd64

package main

// sysRenameat2 is renameat2(2) on the machines with the generic list of calls.
const sysRenameat2 = 276
