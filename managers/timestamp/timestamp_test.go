package timestamp_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/timestamp"
)

// TestBounded: for any clock, records and messages can hold it, also with a year added.
func TestBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		clock := time.Unix(rapid.Int64Range(-math.MaxInt64/2, math.MaxInt64/2).Draw(t, "seconds"),
			rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds"))
		if rapid.Bool().Draw(t, "near") {
			clock = time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "near seconds"), 0)
		}
		now := timestamp.Clock(func() time.Time { return clock })()
		for _, at := range []time.Time{now, now.UTC(), now.AddDate(1, 0, 0)} {
			if _, err := json.Marshal(at); err != nil {
				t.Fatalf("%v became %v: %v", clock, at, err)
			}
			if err := timestamppb.New(at).CheckValid(); err != nil {
				t.Fatalf("%v became %v: %v", clock, at, err)
			}
		}
		if !clock.Before(timestamp.First) && !clock.After(timestamp.Last) && now != clock {
			t.Fatalf("%v became %v", clock, now)
		}
	})
	if now := time.Now(); timestamp.Bounded(now) != now {
		t.Error("the monotonic reading is lost")
	}
}
