-- Purchases of the hour after a click, with the click: docs/sql.md says how to run it.
SELECT
  user_id,
  bought_at,
  amount,
  amount * 0.8 AS net
FROM clicks
JOIN purchases
  ON user_id = buyer_id
  AND bought_at BETWEEN clicked_at AND clicked_at + INTERVAL 1 HOUR
WHERE amount > 20
