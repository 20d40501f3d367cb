// Package machine has the commands of berthctl about the machine and about berthd itself: its topology, huge pages, policy and
// device plugins, and the page for a browser.
//
// Invariants: a change is shown with the value before and after it.
package machine
