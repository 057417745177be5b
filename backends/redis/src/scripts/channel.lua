-- Finds out whether this user may tell others on a channel. Changes nothing.
--
-- KEYS  held
-- ARGV  channel
-- Answers 1, or the server's refusal.
redis.call(publish_on(ARGV[1]), ARGV[1], '-')
return 1
