package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// TestReview: a token is reviewed first, and its owner with all groups second. Only an owner who is known and allowed may get a path.
func TestReview(t *testing.T) {
	t.Parallel()
	var owner authenticationv1.TokenReviewStatus
	var verdict authorizationv1.SubjectAccessReviewStatus
	var fails string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s %s with %q", r.Method, r.URL, r.Header.Get("Authorization"))
		}
		if fails != "" && strings.HasSuffix(r.URL.Path, fails) {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		switch r.URL.Path {
		case "/apis/authentication.k8s.io/v1/tokenreviews":
			var review authenticationv1.TokenReview
			if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Spec.Token != "theirs" || review.Kind != "TokenReview" {
				t.Errorf("%v: %+v", err, review)
			}
			_ = json.NewEncoder(w).Encode(authenticationv1.TokenReview{Status: owner})
		case "/apis/authorization.k8s.io/v1/subjectaccessreviews":
			var review authorizationv1.SubjectAccessReview
			err := json.NewDecoder(r.Body).Decode(&review)
			s := review.Spec
			if err != nil || s.User != owner.User.Username || len(s.Groups) != len(owner.User.Groups) || s.Extra["scope"][0] != "all" ||
				s.UID != owner.User.UID ||
				s.NonResourceAttributes == nil || *s.NonResourceAttributes != (authorizationv1.NonResourceAttributes{Path: "/metrics",
				Verb: "get"}) || s.ResourceAttributes != nil {
				t.Errorf("%v: %+v", err, s)
			}
			_ = json.NewEncoder(w).Encode(authorizationv1.SubjectAccessReview{Status: verdict})
		default:
			t.Errorf("unexpected call: %s", r.URL)
		}
	}))
	t.Cleanup(server.Close)
	a := &apiServer{base: server.URL, accounts: account(t, server), node: "n1", log: slog.New(slog.DiscardHandler), now: time.Now}
	user := authenticationv1.UserInfo{Username: "prometheus", UID: "u", Groups: []string{"a", "b"},
		Extra: map[string]authenticationv1.ExtraValue{"scope": {"all"}}}
	for name, row := range map[string]struct {
		authenticated, allowed, denied bool
		user                           authenticationv1.UserInfo
		fails                          string
		want, wantErr                  bool
	}{
		"allowed":                      {true, true, false, user, "", true, false},
		"not allowed":                  {true, false, false, user, "", false, false},
		"denied by another authorizer": {true, true, true, user, "", false, false},
		"a token of nobody":            {false, true, false, user, "", false, false},
		"a user without a name":        {true, true, false, authenticationv1.UserInfo{}, "", false, false},
		"no review of tokens":          {true, true, false, user, "tokenreviews", false, true},
		"no review of rights":          {true, true, false, user, "subjectaccessreviews", false, true},
	} {
		owner = authenticationv1.TokenReviewStatus{Authenticated: row.authenticated, User: row.user}
		verdict, fails = authorizationv1.SubjectAccessReviewStatus{Allowed: row.allowed, Denied: row.denied}, row.fails
		if allowed, err := a.review(t.Context(), "theirs", "/metrics"); allowed != row.want || (err != nil) != row.wantErr {
			t.Errorf("%s: %v, %v", name, allowed, err)
		}
	}
}

// TestMetricsFlags: the flags of the metrics belong together.
func TestMetricsFlags(t *testing.T) {
	t.Parallel()
	theirs := t.TempDir()
	if err := os.Chown(theirs, 65534, 65534); err != nil && os.Geteuid() == 0 {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--metrics-certificate=/c":                      "need --metrics-address",
		"--metrics-key=/k":                              "need --metrics-address",
		"--metrics-sockets=a=/s":                        "need --metrics-address",
		"--metrics-address=:1":                          "needs --metrics-certificate and --metrics-key",
		"--metrics-address=:1 --metrics-certificate=/c": "needs --metrics-certificate and --metrics-key",
		"--metrics-address=:1 --metrics-certificate=/c --metrics-key=/k --metrics-sockets=a=s":                "absolute path",
		"--metrics-address=:1 --metrics-certificate=/c --metrics-key=/k --metrics-sockets=a/b=/":              "expected a name",
		"--metrics-address=:1 --metrics-certificate=/c --metrics-key=/k --metrics-sockets=a=" + theirs + "/s": "belongs to user 65534",
	} {
		if strings.Contains(want, "user") && os.Geteuid() != 0 {
			continue // only root makes files of others
		}
		cmd := command(io.Discard, io.Discard)
		cmd.SetArgs(strings.Fields(args))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, without %q", args, err, want)
		}
	}
	m := &metrics{address: "127.0.0.1:0", certificate: "/c", key: "/k"}
	if _, err := m.serve(nil, nil); err == nil || !strings.Contains(err.Error(), "--service-account") {
		t.Errorf("without a service account: %v", err)
	}
}
