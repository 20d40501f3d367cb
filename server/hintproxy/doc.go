// Package hintproxy lets hint providers that are processes of their own take part
// in admissions (berth.hint.v1).
//
// Words:
//
//   - provider: here always one outside berthd. It serves its own socket.
//   - registration: what berthd knows of a provider, also while it is away
//     (ledger.Outsider).
//   - proxy: a provider as the bus sees it, a hint.Provider over a connection.
//   - holdings: everything that pods hold of a provider, computed from the ledger.
//   - lease: what a provider holds reserved for an admission. It ends by itself
//     unless the admission is committed.
//   - away: nobody answers at the provider's endpoint, or what answers has not
//     confirmed its holdings on this connection.
//   - suspended: it has failed several times in a row and is left alone for a
//     while, or until it has confirmed its holdings on a new connection.
//
// The life of a provider, seen from here: it registers; berthd connects, sends it
// the machine and its holdings, and only when it has confirmed them puts it on the
// bus. Each admission asks it for hints and a plan, then it reserves. Whenever its
// holdings change, and on every new connection, all of them are sent again until
// it confirms. A registration ends by Unregister alone.
//
// A provider may be another user's process. A registration belongs to the user who
// made it, and so do the socket and the process behind it. What it may do to
// containers is in the configuration, and so is whether pods fail without it.
//
// Invariants: a provider that is known is on the bus, connected or not, so a
// required one that is away refuses what concerns it in its own name; everything
// that a provider says is checked here before a manager sees it; what an admission
// has reserved is either confirmed, aborted or left to run out; a provider is told
// all commits and aborts before the next reservation. Nothing is remembered that
// the ledger does not have, except reservations of admissions under way.
package hintproxy
