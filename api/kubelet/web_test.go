package kubelet

import (
	"bytes"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfig: the configuration of a kubelet's web server becomes one that can be read like a file.
func TestConfig(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		code       int
		text, want string
	}{
		"a configuration": {200, `{"kubeletconfig": {"cpuManagerPolicy": "static"}}`,
			`{"apiVersion":"kubelet.config.k8s.io/v1beta1","cpuManagerPolicy":"static","kind":"KubeletConfiguration"}`},
		"another answer":  {200, `{"kind": "Status"}`, "with kubeletconfig"},
		"no JSON":         {200, "<html>", "invalid character"},
		"an endless text": {200, `{"kubeletconfig": {"a": "` + strings.Repeat("x", 5000), "larger than 4096 bytes"},
		"no right":        {403, "Forbidden", `403 Forbidden: "Forbidden"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/configz" || r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("it gets %s with %q", r.URL, r.Header.Get("Authorization"))
				}
				w.WriteHeader(row.code)
				_, _ = io.WriteString(w, row.text)
			}))
			t.Cleanup(server.Close)
			account := t.TempDir()
			for file, text := range map[string][]byte{
				"token": []byte("secret\n"), "ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			} {
				if err := os.WriteFile(filepath.Join(account, file), text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w, err := NewWeb(server.Listener.Addr().String(), "example.com", account, "")
			if err != nil {
				t.Fatal(err)
			}
			w.Most = 4096
			got, err := w.Config(t.Context())
			if err != nil {
				got = []byte(err.Error())
			}
			if !bytes.Contains(got, []byte(row.want)) {
				t.Errorf("it is %s, expected %s", got, row.want)
			}
		})
	}
}
