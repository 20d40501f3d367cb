// Package hosts checks the Host header of requests. A page of another site can make its own name
// lead to this machine (DNS rebinding), and then read what is served here; but the browser sends that
// name.
package hosts

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// Loopback reports whether a Host header names this machine by localhost or a loopback address.
func Loopback(host string) bool {
	name := nameOf(host)
	if strings.EqualFold(name, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.IsLoopback()
}

// Only answers requests for localhost, for an address by its number, for this machine's own name, and
// for the host of the address that is listened on. Nobody can let such a name lead here but who
// runs the machine.
func Only(listen string, next http.Handler) http.Handler {
	own, _ := os.Hostname()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := nameOf(r.Host)
		_, err := netip.ParseAddr(name)
		if err != nil && name != "" && !strings.EqualFold(name, "localhost") && !strings.EqualFold(name, own) &&
			!strings.EqualFold(name, nameOf(listen)) {
			http.Error(w, "requests for this host are refused: use localhost, an address, or the name of this machine",
				http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// nameOf is the host without a port.
func nameOf(host string) string {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	return strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
}
