package page

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
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
		if !localHost(r.Host) {
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

// localHost reports whether a Host header names this machine itself. Any other name may be one that
// its owner lets point here (DNS rebinding).
func localHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.IsLoopback()
}

// Login lets only those in who have opened a link once. On a TCP port every user of the machine
// can connect, and the page has the rights of one.
type Login struct {
	mu sync.Mutex
	// link is what the link has; empty once it was used.
	link   string
	cookie string
}

// NewLogin makes a login with a fresh link.
func NewLogin() *Login { return &Login{link: rand.Text(), cookie: rand.Text()} }

// Path is the path of the link. It works once.
func (l *Login) Path() string { return "/login/" + l.link }

// cookieName names the cookie by the port, because cookies are shared by all ports.
func cookieName(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "berth-" + port
}

// Only serves next to those who are logged in.
func (l *Login) Only(next http.Handler) http.Handler {
	return guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key, ok := strings.CutPrefix(r.URL.Path, "/login/"); ok && r.Method == http.MethodGet {
			if !l.use(key) {
				http.Error(w, "this link has been used or is wrong: start berthctl web again", http.StatusForbidden)
				return
			}
			http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: l.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		cookie, err := r.Cookie(cookieName(r))
		if err != nil || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(l.cookie)) != 1 {
			http.Error(w, "open the link that berthctl web has printed", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	}))
}

func (l *Login) use(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := l.link != "" && subtle.ConstantTimeCompare([]byte(key), []byte(l.link)) == 1
	if ok {
		l.link = ""
	}
	return ok
}
