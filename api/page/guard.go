package page

import (
	"net/http"
	"strings"

	"github.com/berthd/berth/api/hosts"
)

// policy is the Content-Security-Policy. Scripts cannot turn text into markup
// (require-trusted-types-for).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// trialHeader is a header that a page of another site cannot send without a preflight request,
// which never allows it.
const trialHeader = "X-Berth-Page"

// guard checks what comes before every answer.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !hosts.Loopback(r.Host) {
			http.Error(w, "the page is only served under the name localhost or a loopback address", http.StatusForbidden)
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
			http.Error(w, "requests of other sites are refused", http.StatusForbidden)
			return
		}
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
		default:
			if strings.HasPrefix(r.URL.Path, "/api/") {
				http.Error(w, "requests of other sites are refused", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
