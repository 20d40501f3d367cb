// Package command has what the commands of berthctl share: the connection to berthd, the flags of all commands, output as
// tables and for programs, names of pods, and failures with their exit codes.
//
// Words:
//
//   - verb: a command with its subcommand (admit, get pods).
//   - session: one run of a verb, with its connection and its output.
//   - name map: pods by uid, to print names where the API has uids.
//   - listing: the answer of a verb of get, as a message for programs and as tables for people.
//
// Invariants: answers go to standard output, everything else to standard error. Every text of an answer is printed on one line
// with control characters escaped.
package command
