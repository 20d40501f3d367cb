package config_test

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/config"
)

// TestLimitsHaveUpperBounds: every number of limits is refused above what a daemon can serve, by its name.
func TestLimitsHaveUpperBounds(t *testing.T) {
	t.Parallel()
	for i := range reflect.TypeFor[config.Limits]().NumField() {
		c := config.Default()
		field := reflect.TypeFor[config.Limits]().Field(i)
		name := "limits." + field.Tag.Get("json")
		switch v := reflect.ValueOf(&c.Limits).Elem().Field(i); v.Kind() {
		case reflect.Int:
			v.SetInt(math.MaxInt64)
		case reflect.Float64:
			v.SetFloat(math.MaxFloat64)
		default:
			if name == "limits.podResourcesWait" {
				continue // a reader that waits takes nothing from others
			}
			c.Limits.Call.Duration = time.Duration(math.MaxInt64)
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
