package page

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
)

// sessionHeader has the secret of a session. Unlike a cookie, a browser does not send it to the other
// ports of this host: the page keeps it in its localStorage, which belongs to one port.
const sessionHeader = "X-Berth-Session"

// maxKey bounds the body of a login.
const maxKey = 256

// Login lets only those in who have the key of this process, which stands in the part of a link that
// browsers do not send (after #). On a TCP port every user of the machine can connect, and so they can to the
// near end of a forwarded socket.
//
// The page sends the key once, and gets the secret of its session. Both are new in each process.
type Login struct {
	secret []byte
	once   bool

	mu sync.Mutex
	// key is empty once a key that works once was used. guarded by mu
	key string
}

// NewLogin makes a login whose key works once.
func NewLogin() *Login { return &Login{secret: []byte(rand.Text()), once: true, key: rand.Text()} }

// NewSharedLogin makes a login whose key works for everybody who can read it, until the process ends.
func NewSharedLogin() *Login { return &Login{secret: []byte(rand.Text()), key: rand.Text()} }

// Path is the path of the link. The key is not sent with a request for the page, and no log or Referer has it.
func (l *Login) Path() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return "/#login=" + l.key
}

// session is the secret of the sessions of a user; empty where the user of a connection is not known.
func (l *Login) session(user string) string {
	mac := hmac.New(sha256.New, l.secret)
	_, _ = io.WriteString(mac, user)
	return hex.EncodeToString(mac.Sum(nil))
}

// Only serves data next to those who are logged in. The page itself has none, so everybody gets it. userOf names
// the user of a request's connection: a session is that user's only. It may be nil.
func (l *Login) Only(userOf func(*http.Request) string, next http.Handler) http.Handler {
	if userOf == nil {
		userOf = func(*http.Request) string { return "" }
	}
	return guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		session := l.session(userOf(r))
		switch {
		case r.URL.Path == "/api/v1/login":
			l.login(w, r, session)
			return
		case !strings.HasPrefix(r.URL.Path, "/api/"):
		case subtle.ConstantTimeCompare([]byte(r.Header.Get(sessionHeader)), []byte(session)) != 1:
			http.Error(w, "not logged in: open the link with #login= that the program has printed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	}))
}

// login answers a key with the secret of a session.
func (l *Login) login(w http.ResponseWriter, r *http.Request, session string) {
	if r.Method != http.MethodPost || r.Header.Get(trialHeader) == "" {
		http.Error(w, "expected POST with the header "+trialHeader, http.StatusForbidden)
		return
	}
	key, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxKey))
	if err != nil || !l.use(string(key)) {
		http.Error(w, "this link has been used or is wrong: start berthctl web again", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"session": session})
}

func (l *Login) use(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	ok := l.key != "" && subtle.ConstantTimeCompare([]byte(key), []byte(l.key)) == 1
	if ok && l.once {
		l.key = ""
	}
	return ok
}
