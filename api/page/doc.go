// Package page serves a page for a browser that shows a machine with the pods on it, and the
// JSON and the events that the page reads. berthd and berthctl serve the same page.
//
// It owns the page, its data and their protection. It makes calls over a connection to berthd,
// with the rights of that connection, and it makes only those in the tables of handlers.go and
// trials.go: they read, or they are dry runs. It stores nothing and makes no call while no page is open.
//
// # Words
//
//   - guard: the checks that come before every answer (guard.go).
//   - trial: a dry run that a person starts on the page: of an admission, a policy, a resize or a defragmentation.
//   - remark: what is to be said about a line of a pod's text, a mistake or a field that is ignored.
//   - attention: what a person may have to do something about.
//
// # Invariants
//
//   - No call changes the state of berthd.
//   - Data is a message of proto/ in protobuf's JSON, or an object of such messages.
//   - Everything that a browser loads comes from this package; the Content-Security-Policy
//     allows nothing else.
//   - A request for another host than this machine gets no data, so a page of another site
//     cannot read it by a name that it lets point here.
package page
