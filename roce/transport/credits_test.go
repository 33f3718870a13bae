package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/xroce/xroce/internal/support"
	"github.com/xroce/xroce/roce"
)

// TestCreditsModel compares the limit with one that is kept in numbers that never wrap, over several times 2^24
// messages.
func TestCreditsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c credits
		var limit uint64
		limited, released := false, false
		done := uint64(0) // messages that the peer has executed, at the time of the newest acknowledgement
		check := func() {
			if released || !limited {
				require.True(t, c.permit(done+1<<30))
				return
			}
			require.True(t, c.permit(limit+1), "limit %d", limit)
			require.False(t, c.permit(limit+2), "limit %d", limit)
		}
		says := func(code uint8, msn uint64) {
			more := c.update(roce.AckSyndrome(code), uint32(msn)&0xFFFFFF)
			if code == 0x1F {
				require.Equal(t, limited && !released, more)
				released = true
			}
			if next := msn + uint64(roce.Credits(code)); !released && (!limited || next > limit) {
				require.Equal(t, next > limit, more)
				limit = next
			} else if code != 0x1F {
				require.False(t, more)
			}
			limited = true
			check()
		}
		code := rapid.Uint8Range(0, 30)
		t.Repeat(map[string]func(*rapid.T){
			"news": func(t *rapid.T) {
				done += rapid.Uint64Range(0, 1<<20).Draw(t, "messages")
				says(code.Draw(t, "code"), done)
			},
			"much news": func(t *rapid.T) {
				if !limited {
					return // the first news comes before message number 2^23
				}
				done += rapid.Uint64Range(1<<22, 1<<23-1<<16).Draw(t, "messages")
				done = min(done, limit+1<<23-1<<16)
				says(code.Draw(t, "code"), done)
			},
			"late": func(t *rapid.T) {
				says(code.Draw(t, "code"), done-min(done, rapid.Uint64Range(0, 1<<22).Draw(t, "behind")))
			},
			"free": func(t *rapid.T) {
				for range rapid.IntRange(1, 5).Draw(t, "messages") {
					c.sentFreely()
					if limited {
						limit++
					}
				}
			},
			"release": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "dice") == 0 {
					says(0x1F, done)
				}
			},
			"": func(*rapid.T) { check() },
		})
	})
	support.Object(t, "Credits", "over several times 2^24 messages", "as if numbers never wrapped")
}
