package workload

import "strings"

// Longest names, in characters.
const (
	maxLabel     = 63  // a DNS-1123 label
	maxSubdomain = 253 // a DNS-1123 subdomain
	maxUID       = 128 // leaves room for prefix and suffix within the 255 bytes of a file name
)

func lower(c byte) bool        { return c >= 'a' && c <= 'z' }
func digit(c byte) bool        { return c >= '0' && c <= '9' }
func letter(c byte) bool       { return lower(c) || c >= 'A' && c <= 'Z' }
func alphanumeric(c byte) bool { return letter(c) || digit(c) }

// word reports whether s has 1 to longest characters, all allowed or among the extra ones, the first and last allowed.
func word(s string, longest int, allowed func(byte) bool, extra string) bool {
	if s == "" || len(s) > longest || !allowed(s[0]) || !allowed(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !allowed(s[i]) && strings.IndexByte(extra, s[i]) < 0 {
			return false
		}
	}
	return true
}

// IsDNSLabel reports whether a text is a label of RFC 1123 in lower case, of at most 63 characters.
func IsDNSLabel(s string) bool { return dnsLabel(s) }

// IsDNSSubdomain reports whether a text is labels of RFC 1123 in lower case, joined by dots, of at most 253 characters.
func IsDNSSubdomain(s string) bool { return dnsSubdomain(s) }

// IsUID reports whether a text may be the uid of a pod.
func IsUID(s string) bool { return safeUID(s) }

// dnsLabel is RFC 1123's label in lower case.
func dnsLabel(s string) bool {
	return word(s, maxLabel, func(c byte) bool { return lower(c) || digit(c) }, "-")
}

// dnsSubdomain is a row of labels joined by dots. As in Kubernetes only the whole is limited in length, not each label.
func dnsSubdomain(s string) bool {
	if len(s) > maxSubdomain {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !word(label, maxSubdomain, func(c byte) bool { return lower(c) || digit(c) }, "-") {
			return false
		}
	}
	return true
}

// qualifiedName is [subdomain/]name.
func qualifiedName(s string) bool {
	prefix, name, split := strings.Cut(s, "/")
	if !split {
		name = prefix
	} else if !dnsSubdomain(prefix) {
		return false
	}
	return word(name, maxLabel, alphanumeric, "-_.")
}

// safeUID is what PodID promises. '_' is left out because the systemd cgroup driver turns '-' into '_' and could not turn it
// back; ".." cannot stand alone because the first and last characters are letters or digits.
func safeUID(s string) bool { return word(s, maxUID, alphanumeric, "-.") }
