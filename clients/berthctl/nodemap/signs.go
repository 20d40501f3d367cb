package nodemap

import "strconv"

// Signs are the characters of a map that are not pods' letters.
type Signs struct {
	Shared, Reserved, ForClaims, Offline, Broken, Unknown, Several, Other, Free rune
}

var (
	unicodeSigns = Signs{Shared: '·', Reserved: '▒', ForClaims: '□', Offline: '×', Broken: '!', Unknown: '?', Several: '*', Other: '+',
		Free: '·'}
	asciiSigns = Signs{Shared: '.', Reserved: '#', ForClaims: '=', Offline: '-', Broken: '!', Unknown: '?', Several: '*', Other: '+',
		Free: '.'}
)

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// colors are colors of a terminal's 256 that are readable on light and dark backgrounds and
// differ clearly.
var colors = []int{33, 166, 35, 161, 98, 136, 37, 203, 70, 132, 67, 172}

// sign is a character with its color; color 0 is the terminal's own.
type sign struct {
	r     rune
	color int
}

const dim = -1

// pod is the sign of the pod with an index; -1 is a holder that is not among the pods.
func (c *canvas) pod(i int) sign {
	switch {
	case i < 0:
		return sign{c.signs.Unknown, 0}
	case c.only >= 0 && i != c.only, i >= len(letters):
		return sign{c.signs.Other, dim}
	}
	return sign{rune(letters[i]), colors[i%len(colors)]}
}

// cpu is the sign of a CPU.
func (c *canvas) cpu(id int) sign {
	switch u := c.plan.uses[id]; u.kind {
	case shared:
		return sign{c.signs.Shared, dim}
	case reserved:
		return sign{c.signs.Reserved, dim}
	case forClaims:
		return sign{c.signs.ForClaims, dim}
	case offline:
		return sign{c.signs.Offline, 160}
	case broken:
		return sign{c.signs.Broken, 160}
	case exclusive:
		return c.pod(u.pod)
	}
	return sign{c.signs.Unknown, 0}
}

// paint returns signs as text. Signs of one color that follow each other share a sequence.
func (c *canvas) paint(signs []sign) string {
	var out []byte
	color := 0
	for _, s := range signs {
		if c.Color && s.color != color && s.r != ' ' {
			out = append(out, sequence(s.color)...)
			color = s.color
		}
		out = append(out, string(s.r)...)
	}
	if color != 0 {
		out = append(out, sequence(0)...)
	}
	return string(out)
}

func sequence(color int) string {
	switch color {
	case 0:
		return "\x1b[0m"
	case dim:
		return "\x1b[0;2m"
	}
	return "\x1b[0;38;5;" + strconv.Itoa(color) + "m"
}
