from looking import *
def test_p(second):
    pg=second
    pg.locator('[role=tab] [data-plugin-id]').first.wait_for()
    print(pg.locator("[role=tab][aria-disabled=false] [data-plugin-id]").evaluate_all("t=>t.map(x=>x.dataset.pluginId)"))
    pg.locator('[role=tab] [data-plugin-id=projector]').click()
    pg.wait_for_timeout(8000)
    print([f.url for f in pg.frames])
    for f in pg.frames:
        print(words(f.locator('body'))[:150])
    pg.screenshot(path='/tmp/br/projector.png')
    print([ (e.evaluate("e=>e.tagName"), e.evaluate('e=>e.getBoundingClientRect().width')) for e in pg.locator('vz-projector-dashboard, vz-projector-app, vz-projector').all()])
    assert 0
