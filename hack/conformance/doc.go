// Command conformance compares the decisions of berth's managers with recorded decisions of
// the kubelet's resource managers.
//
//	go run ./hack/conformance [-dir DIR] [-suite NAME] [-v] [-no-skip]
//
// DIR has a file SUITE.jsonl or SUITE.jsonl.gz for every suite, one case a line,
// and the same under unstable/ for cases in which repeated runs of the reference
// gave different answers; the machines of the cases are in topologies.json. The output has
// a line for every suite, and for every failing case its id, the expected and the actual answer. The
// last line reads "N passed, N failed, N skipped". The exit status is 1 if a
// case failed (with -no-skip also if one was skipped), 2 if the recordings
// could not be read at all.
//
// # Words
//
//   - suite: how the cases of one file are decided and judged; see suites.go for
//     the list.
//   - input, recording: the two halves of a case. A suite's decide function gets
//     the input and calls the managers' shipped entry points; it never sees the
//     case's id or the recording.
//   - skip: a case that needs something that is not built yet, with the reason.
//     There is none at present.
//   - listed difference: a case in which the reference is wrong (it carries a
//     quirk, or the reference panicked or hung, or the recording by itself breaks
//     a rule that every answer has to keep) and berth answers otherwise, as an
//     entry of docs/deviations.md says. It counts as passed, and apart.
//
// # Rules
//
// Unknown input fails: a file without a suite, a case with a key that its suite does
// not read, or an unknown operation, feature gate or quirk.
//
// Every case is decided twice, and two unlike answers are a failure. So is a
// panic, and a case that is not decided before the deadline. An unstable case
// passes if the answer is one of the recorded variants.
//
// # Adding a suite
//
// A file suite_NAME.go declares one struct for the keys of the input and one for
// those of the recording, a Plan with Decide and Compare (and Differs, where the
// reference has defects that berth does not share; Unsound, where the recordings
// do not mark all of them; Unread, for keys that are known and say nothing new),
// and goes into the list in suites.go. What is not built yet returns Skip. An entry
// of docs/deviations.md is a row of a table whose first cell is the entry's id, as
// in "| A1 |". The suite's counts are pinned in counts_test.go.
package main
