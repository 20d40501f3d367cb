// Package timestamp bounds times to those that records and messages can hold.
//
// JSON (RFC 3339) has the years 0 to 9999, google.protobuf.Timestamp the years 1 to 9999. A clock that is set beyond that
// (a dead battery, a test) must not be a reason why a pod cannot be admitted or a record cannot be written.
//
// Invariants: a time within the bounds is returned as it is, with its monotonic reading; a year after Last can still be
// held, so that a deadline may be added to any bounded time.
//
// Other modules may import this package, and every release may change it.
package timestamp

import "time"

// First and Last are the bounds: the beginning of Unix time, and a year before the last year that can be written.
var (
	First = time.Unix(0, 0).UTC()
	Last  = time.Date(9998, time.December, 31, 0, 0, 0, 0, time.UTC)
)

// Bounded gives the nearest time that can be held.
func Bounded(t time.Time) time.Time {
	switch {
	case t.Before(First):
		return First
	case t.After(Last):
		return Last
	}
	return t
}

// Clock gives a clock whose times are bounded.
func Clock(now func() time.Time) func() time.Time { return func() time.Time { return Bounded(now()) } }
