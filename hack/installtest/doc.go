// Package installtest tests what berth's packages do to a machine beside putting files there.
package installtest
