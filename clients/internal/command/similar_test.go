package command

import (
	"slices"
	"testing"
)

func TestSimilar(t *testing.T) {
	t.Parallel()
	pods := []string{"default/web", "shop/web-1", "shop/web-2", "default/train", "shop/web", "default/a b", "other/webs"}
	for typed, want := range map[string][]string{
		"wbe":        {"default/web", "other/webs", "shop/web"},
		"we":         {"default/web", "other/webs", "shop/web"},
		"shop/web-3": {"shop/web", "shop/web-1", "shop/web-2"},
		"trian":      {"default/train"},
		"nope":       nil,
		"":           nil,
		"\x1b[2J":    nil,
	} {
		if got := similar(typed, pods); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}
