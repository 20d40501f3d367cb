package arch

import (
	"reflect"
	"strings"
	"testing"
)

// TestNamed: an architecture is complete, and another one is refused with the names that there are.
func TestNamed(t *testing.T) {
	t.Parallel()
	for name := range table() {
		a, err := Named(name)
		if err != nil || a.Name != name {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		for v, i := reflect.ValueOf(a), 0; i < v.NumField(); i++ {
			if field := v.Type().Field(i); field.Type.Kind() == reflect.String && v.Field(i).Len() == 0 {
				t.Errorf("%s has no %s", name, field.Name)
			}
		}
		if !strings.HasSuffix(a.Kernel, name) || len(a.Events) != 2 || !strings.Contains(a.Events[1], "chardev") {
			t.Errorf("%+v", a)
		}
	}
	if _, err := Named("riscv64"); err == nil || !strings.Contains(err.Error(), "amd64 or arm64") {
		t.Errorf("%v", err)
	}
}
