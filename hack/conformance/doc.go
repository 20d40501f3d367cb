// Command conformance compares the decisions of berth's managers with recorded decisions of the
// kubelet's resource managers.
//
//	go run ./hack/conformance [-dir DIR] [-suite NAME] [-v] [-no-skip]
//
// DIR has a file SUITE.jsonl or SUITE.jsonl.gz for every suite, with one case in each line. Its
// subdirectory unstable has the same for cases in which repeated runs of the reference gave
// different answers. The machines of the cases are in topologies.json, and the version of the
// kubelet in reference.json (without it 1.36.3). The output has a line for
// every suite. For every failing case it has the id, and the expected and the actual answer. The
// last line reads "N passed, N failed, N skipped". The exit status is 1 if a case failed (with
// -no-skip also if one was skipped), and 2 if the recordings could not be read.
//
// # Words
//
//   - suite: the way to decide and judge the cases of one file; see suites.go for
//     the list.
//   - input, recording: the two halves of a case. A suite's decide function gets
//     the input and calls the managers' exported functions. It gets neither the
//     case's id nor the recording.
//   - sequence: a case with many operations. Each step is judged as a case of its own, on the
//     recorded state before it.
//   - skip: a case that needs a feature that is not built yet, with the reason.
//     There is none at present.
//   - listed difference: a case in which the reference is wrong and berth decides
//     differently, as an entry of docs/deviations.md describes. The reference is wrong
//     if the case has a quirk, the reference panicked or hung, or the recording alone
//     breaks a rule for all answers. Two more kinds need a proof: berth's choice is
//     better, and the managers give the recording if they decide as the kubelet does
//     (cpu.Config.AsKubelet); or the recording is of an older kubelet, and follows from
//     its rule. The case counts as passed, in a separate number.
//
// # Rules
//
// Unknown input fails: a file without a suite, a case with a key that its suite does not read, or
// an unknown operation, feature gate or quirk.
//
// Every case is decided twice. Two different answers are a failure. So is a panic, and a case
// that is not decided before the deadline. An unstable case passes if the answer is one of the
// recorded variants.
//
// # Adding a suite
//
// Write a file suite_NAME.go with one struct for the keys of the input, one for those of the
// recording, and a Plan with Decide and Compare. Add Differs if the reference has defects that
// berth does not share, and Unsound if the recordings do not mark all of them. List known keys
// without new information in Unread. Add the Plan to the list in suites.go. Decide returns Skip
// for features that are not built yet. An entry of docs/deviations.md is a row of a table whose
// first cell is the entry's id, as in "| A1 |". The suite's counts are pinned in counts_test.go.
package main
