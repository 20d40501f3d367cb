package archtest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	pageLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	linkText  = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// outsideCode returns the lines of a page outside of fenced code.
func outsideCode(text string) (lines []string) {
	code := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			lines = append(lines, line)
		}
	}
	return lines
}

// anchors returns the targets of links in a page: its headings, as GitHub names them.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, line := range outsideCode(text) {
		heading := strings.TrimLeft(line, "#")
		if heading == line || !strings.HasPrefix(heading, " ") {
			continue
		}
		name := linkText.ReplaceAllString(strings.TrimSpace(heading), "$1")
		out[strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(name), ""), " ", "-")] = true
	}
	return out
}

// brokenLinks returns the links between pages whose file or heading does not exist. pages are the texts by path.
func brokenLinks(pages map[string]string, hasFile func(string) bool) (findings []string) {
	for page, text := range pages {
		for _, m := range pageLink.FindAllStringSubmatch(strings.Join(outsideCode(text), "\n"), -1) {
			file, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, ":") {
				continue // of another site
			}
			target := page
			if file != "" {
				target = path.Join(path.Dir(page), file)
			}
			switch {
			case !hasFile(target):
				findings = append(findings, page+" links to "+m[1]+", and there is no such file")
			case heading != "" && !anchors(pages[target])[heading]:
				findings = append(findings, page+" links to "+m[1]+", and there is no such heading")
			}
		}
	}
	return findings
}

// TestLinks: every link of a page to a page or a file of the repository has a target, with the heading that it names.
func TestLinks(t *testing.T) {
	t.Parallel()
	pages := map[string]string{}
	err := walk(func(name string) error {
		if !strings.HasSuffix(name, ".md") {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		pages[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 20 {
		t.Fatalf("%d pages", len(pages))
	}
	report(t, brokenLinks(pages, func(file string) bool { _, err := os.Stat(filepath.Join(root, file)); return err == nil }))
}

func TestChecksOfLinksObject(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, link string
		want       int
	}{
		{"page", "[b](b.md)", 0},
		{"heading", "[b](b.md#what-is-it-the-b)", 0},
		{"own heading", "[a](#top)", 0},
		{"picture", "![p](p.png)", 0},
		{"site", "[s](https://example.com/none.md#x)", 0},
		{"code", "```\n[b](none.md)\n```", 0},
		{"no page", "[b](none.md)", 1},
		{"no heading", "[b](b.md#what)", 1},
		{"no own heading", "[a](#what)", 1},
		{"heading in code", "[b](b.md#code)", 1},
	} {
		pages := map[string]string{"docs/a.md": "# Top\n" + tt.link, "docs/b.md": "## What is it, the `B`?\n```\n# code\n```\n"}
		has := func(file string) bool { return pages[file] != "" || file == "docs/p.png" }
		if got := brokenLinks(pages, has); len(got) != tt.want {
			t.Errorf("%s: %d findings, want %d: %v", tt.name, len(got), tt.want, got)
		}
	}
}
