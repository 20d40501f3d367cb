package kubelet

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestCheckAmounts: a file is damaged that the kubelet of its version would not start with.
func TestCheckAmounts(t *testing.T) {
	t.Parallel()
	file := func(data string) string {
		text, err := json.Marshal(map[string]any{"data": data, "checksum": checksum("(string)" + data)})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for text, want := range map[string]string{
		file(`{"entries":{"u1":{"ContainerResources":{"c":{}}}}}`): "",
		file(`{"entries":{"u1":{"c":{}}}}`):                        "", // Kubernetes 1.33
		file(`{}`):                                                 "",
		file(`null`):                                               "",
		file(`{"podList":"CgA=","entries":null}`):                  "",
		"":                             "no JSON",
		`[]`:                           "expected an object",
		`{"data":"{}"}`:                "the checksum is 0",
		`{"data":"{}","checksum":"1"}`: "checksum: expected",
		file(``):                       "data: no JSON",
		file(`{"entries"`):             "data: no JSON",
		file(`[]`):                     "data: expected an object",
		file(`{"entries":["u1"]}`):     "data: entries: expected an object",
		file(`{"podList":"?"}`):        "data: cannot be read: illegal base64",
	} {
		err := CheckAmounts([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
