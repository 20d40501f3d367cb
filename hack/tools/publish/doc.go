// Command publish brings a release that is in dist/ to the places that people install it from. hack/release.sh publish calls it for the
// places of whoever owns the names, and hack/release.sh rehearse for places on this machine.
//
//	publish sign -key FILE DIST              signs SHA256SUMS (minisign): SHA256SUMS.minisig
//	publish verify -public FILE DIST         checks the signature, and that each file is as SHA256SUMS says
//	publish images -to REGISTRY/NAME DIST    pushes the images, and prints each with its digest; the password is that of `docker login`
//	publish module -to DIR -commit REVISION -version vVERSION
//	                                         puts the Go module into a directory that GOPROXY=file://DIR reads
//	publish key -to DIR                      makes a pair of keys: minisign.key and minisign.pub
//	publish registry                         serves a registry on a port of loopback, in memory; prints the address
//
// Invariants: nothing is pushed whose checksum is not the one of SHA256SUMS. What is published under a version is never replaced. A
// signature covers the names of all files, because it is of SHA256SUMS, and a file in dist/ that it does not have is an error.
package main
