// Package hintproxy connects external hint providers (separate processes, berth.hint.v1) to
// the admission's bus.
//
// Words:
//
//   - provider: in this package always an external one. It serves its own socket.
//   - registration: the stored data of a provider, also while it is away
//     (ledger.ExternalProvider).
//   - proxy: the hint.Provider of an external provider, over a connection.
//   - allocations: all claims of pods on a provider's resources, computed from the ledger.
//   - lease: a provider's reservation for an admission. It expires unless the admission is
//     committed.
//   - away: no process answers at the provider's endpoint, or the process has not confirmed
//     its allocations on this connection.
//   - suspended: several calls in a row have failed. The provider is not called for a while,
//     or until it has confirmed its allocations on a new connection.
//
// A provider registers. berthd connects and sends the machine and the allocations. When the
// provider has confirmed them, it is put on the bus. Each admission requests hints and a
// plan, then a reservation. After every change of the allocations, and on every new
// connection, berthd sends them until the provider confirms: all of them on a new connection,
// and then the difference to the list that the provider has. Requests have the difference to
// that list, too. A registration ends by Unregister, with its lease, and with the
// role of its user.
//
// A provider may run as any user. Its registration belongs to that user, who must also own
// the socket and run the process behind it. The configuration defines which settings of
// containers it may change, and whether pods fail without it.
//
// Invariants:
//
//   - A registered provider is always on the bus. If a required provider is away, it refuses
//     the pods that concern it, in its own name.
//   - A registration and its end are on the bus before they are in the ledger. A failed commit puts the
//     earlier providers back, and no provider of the ledger prevents a start.
//   - Every answer of a provider is checked in this package before a manager uses it.
//   - Every reservation is either confirmed, aborted, or expires.
//   - A provider receives all earlier commits and aborts before the next reservation.
//   - Except for the reservations of running admissions, all state is in the ledger.
package hintproxy
