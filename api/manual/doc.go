// Package manual makes the manual pages of the programs, from their commands. It does so in
// programs that are built with the tag man alone, so that the others need not carry what
// that takes:
//
//	go run -tags man ./clients/berthctl manual DIR
package manual
