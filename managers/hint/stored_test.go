package hint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// hoarder plans claims on so many resources, with so many bytes each. It stores them when it
// plans, or when it prepares.
func hoarder(name string, claims, size int, late bool, heard *[]string) *actor {
	fill := func(all []ledger.Claim, n int) []ledger.Claim {
		out := make([]ledger.Claim, len(all))
		for i, c := range all {
			c.Opaque = make([]byte, n)
			out[i] = c
		}
		return out
	}
	a := &actor{name: name, heard: heard}
	a.plan = func(_ context.Context, req hint.Request) (all []ledger.Claim, _ error) {
		for i := range claims {
			all = append(all, ledger.Claim{Owner: req.Owner(), Provider: name, Resource: fmt.Sprintf("example.com/r%d", i)})
		}
		if late {
			return fill(all, 1), nil
		}
		return fill(all, size), nil
	}
	a.prepare = func(_ context.Context, all []ledger.Claim) ([]ledger.Claim, error) { return fill(all, size), nil }
	return a
}

// What providers store with claims is limited for each container, when they plan and when they
// prepare. A required provider that exceeds it is named. An advisory one loses its claims.
func TestStoredClaimsAreBounded(t *testing.T) {
	t.Parallel()
	const limit = 256 << 10 // of a container
	for _, late := range []bool{false, true} {
		for claims, fits := range map[int]bool{limit/4096 - 1: true, 1000: false} {
			for _, mode := range []hint.Mode{hint.Required, hint.Advisory} {
				var heard []string
				s := newStage(t,
					hint.Entry{Provider: hoarder("big", claims, 4096, late, &heard), Mode: mode},
					hint.Entry{Provider: &actor{name: "small", plan: opaque("small"), heard: &heard}, Mode: hint.Advisory},
				)
				err := s.bus.Plan(t.Context(), s.draft, s.req, hint.Hint{Any: true}, &s.trace)
				if err == nil {
					err = s.bus.Prepare(t.Context(), "id", s.draft, s.req, &s.trace)
				}
				pod, _ := s.draft.View().Pod("pod")
				held := map[string]int{}
				for _, c := range pod.Claims {
					held[c.Provider]++
				}
				noted := strings.Join(s.texts(ledger.StepNoted), "\n")
				switch what := fmt.Sprintf("%d claims, late %t, %s", claims, late, mode); {
				case fits && (err != nil || held["big"] != claims):
					t.Errorf("%s: %v, %d claims", what, err, held["big"])
				case !fits && mode == hint.Required:
					named := new(errdefs.Error)
					if !errors.As(err, &named) || named.Class != errdefs.Exhausted || named.Provider != "big" {
						t.Errorf("%s: %v, want the class exhausted and the provider", what, err)
					}
				case !fits && (err != nil || held["big"] != 0 || held["small"] != 1 || !strings.Contains(noted, "pod/c would have")):
					t.Errorf("%s: %v, claims %v, noted %q", what, err, held, noted)
				}
			}
		}
	}
}
