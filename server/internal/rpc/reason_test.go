package rpc

import (
	"maps"
	"slices"
	"testing"

	errorsv1 "github.com/berthd/berth/api/berth/errors/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// TestErrorReasons: the codes of errors are the reasons of the API, all of them.
func TestErrorReasons(t *testing.T) {
	t.Parallel()
	told := map[string]bool{errorsv1.ErrorReason_ERROR_REASON_UNSPECIFIED.String(): true}
	for c := range errdefs.Codes() {
		told[string(c)] = true
	}
	got := slices.Sorted(maps.Keys(told))
	if want := slices.Sorted(maps.Keys(errorsv1.ErrorReason_value)); !slices.Equal(got, want) {
		t.Errorf("errors have the codes %q, the API the reasons %q", got, want)
	}
}
