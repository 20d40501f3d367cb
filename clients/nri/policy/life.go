package policy

import (
	"strings"
)

// life is what is known about the start and the end of a container at the runtime. Where it may run is the tracker's
// (managers/placement).
type life string

const (
	made      life = "made"      // the runtime has not requested its start
	barred    life = "barred"    // its start was refused, so it has no process
	inherited life = "inherited" // an earlier berth-nri may have permitted its start
	permitted life = "permitted" // it has a process, or may get one at any moment
	lacking   life = "lacking"   // permitted, and the runtime's last list lacks it
	stopped   life = "stopped"   // the runtime has reported its end; it is kept while its process exists
	leftover  life = "leftover"  // stopped, and the runtime's last list lacks it
)

// lifeEvent is something that an event or a list of the runtime tells about a container.
type lifeEvent string

const (
	permit lifeEvent = "permit" // its start is permitted
	refuse lifeEvent = "refuse" // its start is refused
	begin  lifeEvent = "begin"  // it has a process
	list   lifeEvent = "list"   // a list has it, and not as ended
	lack   lifeEvent = "lack"   // a list lacks it, although its process exists or its start is permitted
	finish lifeEvent = "finish" // the runtime reports its end, or that of its pod
)

// lives is the table of lives. A dot keeps the life; a container that no process and no permitted start keeps is dropped (-). The
// runtime completes a start that was permitted, so only its end ends it; of a container that a list has after its end, nothing is
// certain.
const lives = `
event   made       barred     inherited  permitted  lacking    stopped    leftover
permit  permitted  permitted  permitted  .          permitted  .          .
refuse  barred     .          barred     barred     barred     .          .
begin   permitted  permitted  permitted  .          permitted  .          .
list    .          .          .          .          permitted  inherited  inherited
lack    -          -          -          lacking    .          leftover   .
finish  stopped    stopped    stopped    stopped    leftover   .          .
`

var lifeTable = parseLives()

func parseLives() map[lifeEvent]map[life]life {
	out := map[lifeEvent]map[life]life{}
	lines := strings.Split(strings.TrimSpace(lives), "\n")
	columns := strings.Fields(lines[0])[1:]
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		row := map[life]life{}
		for i, column := range columns {
			switch fields[i+1] {
			case ".", "-":
				row[life(column)] = life(column)
			default:
				row[life(column)] = life(fields[i+1])
			}
		}
		out[lifeEvent(fields[0])] = row
	}
	return out
}

// after is the life after an event.
func (l life) after(e lifeEvent) life { return lifeTable[e][l] }

// over means that the runtime has reported the end.
func (l life) over() bool { return l == stopped || l == leftover }

// unlisted means that the runtime's last list lacked the container.
func (l life) unlisted() bool { return l == lacking || l == leftover }

// granted means that a start was permitted, or may have been before the end.
func (l life) granted() bool { return l == permitted || l == lacking || l.over() }

// startable means that the container may get a process without another event of the runtime.
func (l life) startable() bool { return l == permitted || l == inherited || l == lacking }
